package input

import (
	"errors"
	"strings"

	"github.com/flashkit-go/flashkit"
)

// tensorNames has the tensors of files by the fields that they become.
var tensorNames = map[string]string{
	"Seqs.QLens": "q_lens", "Seqs.KVLens": "kv_lens", "Seqs.QStarts": "q_starts", "Seqs.KVStarts": "kv_starts", "Seqs.Pages": "pages",
}

// OfFile returns an error of a call on an input with the name of the file's tensor in place of
// the field.
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
