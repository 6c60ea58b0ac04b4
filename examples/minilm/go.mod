module github.com/flashkit-go/flashkit/examples/minilm

go 1.25.0

require (
	github.com/stretchr/testify v1.12.1
	golang.org/x/text v0.41.0
)

require go.yaml.in/yaml/v3 v3.0.5 // indirect

replace github.com/flashkit-go/flashkit => ../..
