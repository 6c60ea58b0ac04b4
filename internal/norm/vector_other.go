//go:build !amd64 || noasm || purego

package norm

var vectorRows func(dst, x, weight, bias *float32, cols, rows int, eps float32)
