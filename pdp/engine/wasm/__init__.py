"""The engine in the process: it runs the WebAssembly of a compiled policy with wasmtime.

engine:   the engine: combines a bundle with its data, and extracts the decision from an evaluation
pool:     policy instances for many threads, and the clock that stops their evaluations
instance: loads and checks the compiled module, and runs a guarded instance of the module through wasmtime's public API
direct:   runs the same instance through wasmtime's C API, which is faster but may not be available
"""
