package flashkit

// A DType is the type of a tensor's elements.
type DType uint8

// The element types. Q, K, V, O and their gradients are Float32, Float16 or BFloat16. All of
// them have the type Problem.DType, except that K and V may have the type Problem.KVDType, or
// Int8 with Problem.Int8Group. Every kernel accumulates in float32. LSE, DLSE, slopes and sinks
// are Float32. Only masks are Bool, and only ranges of keys are Int32.
const (
	Float32  DType = iota // IEEE binary32
	Float16               // IEEE binary16
	BFloat16              // bfloat16: the upper 16 bits of a binary32
	Bool                  // one byte, 0 or 1
	Int32                 // signed, 32 bits
	Int8                  // signed, 8 bits; elements of K and V that a scale multiplies
)

// dtypes holds the properties of each type.
var dtypes = [...]struct {
	name  string
	bytes int
	data  bool // allowed for Q, K, V and O
}{
	Float32:  {"f32", 4, true},
	Float16:  {"f16", 2, true},
	BFloat16: {"bf16", 2, true},
	Bool:     {"bool", 1, false},
	Int32:    {"i32", 4, false},
	Int8:     {"i8", 1, false},
}

// String returns "f32", "f16", "bf16", "bool", "i32" or "i8".
func (t DType) String() string {
	if int(t) < len(dtypes) {
		return dtypes[t].name
	}
	return "unknown"
}

// Size returns the size of one element in bytes, 0 for an unknown type.
func (t DType) Size() int {
	if int(t) < len(dtypes) {
		return dtypes[t].bytes
	}
	return 0
}

// isData reports whether the type is allowed for Q, K, V and O.
func (t DType) isData() bool { return int(t) < len(dtypes) && dtypes[t].data }

// ParseDType returns the type named "f32", "f16" or "bf16", else a *ProblemError.
func ParseDType(s string) (DType, error) {
	for i := range dtypes {
		if dtypes[i].data && s == dtypes[i].name {
			return DType(i), nil
		}
	}
	return 0, problemErr("DType", s, "must be f32, f16 or bf16")
}
