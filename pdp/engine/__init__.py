"""Policy engines: who decides. Embedded WebAssembly in the process, or an OPA sidecar; both give the same decisions."""
