"""Who decides: OPA's policies, in the process or in a server beside it; both give the same decisions.

protocol  what every engine does
factory   the engine of an enforcement point that is made from files
wasm      a folder: the bundle's WebAssembly, evaluated in the process
opa       a folder: an OPA that runs beside the process
bundle    a folder: bundle files, their signatures, and following them
data      data that a policy is given beside its bundle
seconds   time-outs as arguments, and the clock that counts them
shadow    a second bundle that decides alongside and is never enforced
"""
