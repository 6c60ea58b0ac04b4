package input

import (
	"errors"
	"strings"

	"github.com/flashkit-go/flashkit"
)

// TypeNames are the values of --dtype, as in problem names.
var TypeNames = []string{"f32", "f16", "bf16", "f32-kvf16", "f32-kvbf16"}

// ParseTypes returns a problem's element type and, if different, the type of K and V.
func ParseTypes(s string) (t, kv flashkit.DType, err error) {
	all, of, mixed := strings.Cut(s, "-kv")
	if t, err = flashkit.ParseDType(all); err != nil || !mixed {
		return t, kv, err
	}
	if kv, err = flashkit.ParseDType(of); err == nil && (t != flashkit.Float32 || kv == t) {
		err = errors.New("keys of another type are f16 or bf16 beside f32")
	}
	return t, kv, err
}

// TypesName returns the types in a problem's name.
func TypesName(p *flashkit.Problem) string {
	if p.KVDType == 0 {
		return p.DType.String()
	}
	return p.DType.String() + "-kv" + p.KVDType.String()
}
