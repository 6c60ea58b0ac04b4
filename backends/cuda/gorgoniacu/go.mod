module github.com/flashkit-go/flashkit/backends/cuda/gorgoniacu

go 1.25.0

require (
	github.com/ebitengine/purego v0.11.3
	github.com/flashkit-go/flashkit v0.0.0
	github.com/stretchr/testify v1.12.1
	gorgonia.org/cu v0.9.6
)

require (
	github.com/google/uuid v1.1.1 // indirect
	github.com/klauspost/compress v1.20.3 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace github.com/flashkit-go/flashkit => ../../..
