package flashkit

// A DType is the type of a tensor's elements.
type DType uint8

// The types. Q, K, V, O and their gradients are Float32, Float16 or BFloat16,
// all of one problem the same but for Problem.KVDType; every kernel accumulates in
// float32. LSE, DLSE, slopes and sinks are Float32. Bool is the type of masks alone.
const (
	Float32  DType = iota // IEEE binary32
	Float16               // IEEE binary16
	BFloat16              // the upper half of a binary32
	Bool                  // a byte, 0 or 1
)

// dtypes says all there is to know of a type.
var dtypes = [...]struct {
	name  string
	bytes int
	data  bool // Q, K, V and O may have it
}{
	Float32:  {"f32", 4, true},
	Float16:  {"f16", 2, true},
	BFloat16: {"bf16", 2, true},
	Bool:     {"bool", 1, false},
}

// String returns "f32", "f16", "bf16" or "bool".
func (t DType) String() string {
	if int(t) < len(dtypes) {
		return dtypes[t].name
	}
	return "unknown"
}

// Size returns the number of bytes of one element, 0 for an unknown type.
func (t DType) Size() int {
	if int(t) < len(dtypes) {
		return dtypes[t].bytes
	}
	return 0
}

// isData reports whether Q, K, V and O may have the type.
func (t DType) isData() bool { return int(t) < len(dtypes) && dtypes[t].data }

// ParseDType returns the type of a problem that is named "f32", "f16" or "bf16".
func ParseDType(s string) (DType, error) {
	for i := range dtypes {
		if dtypes[i].data && s == dtypes[i].name {
			return DType(i), nil
		}
	}
	return 0, problemErr("DType", s, "must be f32, f16 or bf16")
}
