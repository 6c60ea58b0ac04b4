//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import "testing"

func TestLayersOnGPU(t *testing.T) { layersOn(t, openGPU(t)) }
