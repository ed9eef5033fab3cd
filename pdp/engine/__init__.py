"""The engines, which evaluate OPA policies in this process or in an OPA server beside it, with equal decisions.

protocol  the interface of every engine
wasm      a folder: evaluates the bundle's WebAssembly in the process
opa       a folder: asks an OPA server that runs beside the process
bundle    a folder: bundle files, their signatures, and an engine that follows a bundle file
data      data for the policy that is not part of its bundle
shadow    compares decisions with the decisions of a second engine, which are not enforced
"""
