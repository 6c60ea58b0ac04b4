package input

import (
	"errors"
	"strings"

	"github.com/flashkit-go/flashkit"
)

// tensorNames maps the fields of a ProblemError to names of tensors in files.
var tensorNames = map[string]string{
	"Seqs.QLens": "q_lens", "Seqs.KVLens": "kv_lens", "Seqs.QStarts": "q_starts", "Seqs.KVStarts": "kv_starts", "Seqs.Pages": "pages",
}

// OfFile replaces the field of a ProblemError by the name of the tensor in a file that sets this
// field.
func OfFile(err error) error {
	var wrong *flashkit.ProblemError
	if !errors.As(err, &wrong) {
		return err
	}
	end := strings.IndexByte(wrong.Field, '[')
	if end < 0 {
		end = len(wrong.Field)
	}
	name, ok := tensorNames[strings.TrimSuffix(wrong.Field[:end], ".len")]
	if !ok {
		return err
	}
	return &flashkit.ProblemError{Field: "tensor " + name + wrong.Field[end:], Value: wrong.Value, Reason: wrong.Reason}
}
