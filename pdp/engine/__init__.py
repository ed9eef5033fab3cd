"""Who decides: OPA's policies, in the process or in a server beside it; both give the same decisions.

protocol  what every engine does
wasm      a folder: the bundle's WebAssembly, evaluated in the process
opa       a folder: an OPA that runs beside the process
bundle    a folder: bundle files, their signatures, and following them
data      data that a policy is given beside its bundle
shadow    a second engine that decides alongside and is never enforced
"""
