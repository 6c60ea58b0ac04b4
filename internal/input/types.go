package input

import (
	"errors"
	"strings"

	"github.com/flashkit-go/flashkit"
)

// TypeNames are what --dtype takes: the types of a problem, as its name has them.
var TypeNames = []string{"f32", "f16", "bf16", "f32-kvf16", "f32-kvbf16"}

// ParseTypes returns the types of a problem: of all, and of K and V if theirs is another.
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

// TypesName returns what the name of a problem has of its types.
func TypesName(p *flashkit.Problem) string {
	if p.KVDType == 0 {
		return p.DType.String()
	}
	return p.DType.String() + "-kv" + p.KVDType.String()
}
