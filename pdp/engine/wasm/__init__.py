"""The engine in the process: WebAssembly that OPA compiled, run by wasmtime.

engine:   the engine: a bundle with its data, and what of an evaluation is a decision
pool:     instances for many threads, and the clock that stops evaluations
instance: the compiled module, checked to be a policy; one instance and its guards, through wasmtime's public calls
direct:   the same instance, called through wasmtime's C API where that is possible
"""
