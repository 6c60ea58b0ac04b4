// A module of its own keeps these files out of the download of the root module.
module github.com/flashkit-go/flashkit/conformance/vectors

go 1.25.0

require github.com/flashkit-go/flashkit v0.0.0

require (
	github.com/ebitengine/purego v0.11.3 // indirect
	github.com/klauspost/compress v1.20.3 // indirect
	github.com/tetratelabs/wazero v1.12.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace github.com/flashkit-go/flashkit => ../..
