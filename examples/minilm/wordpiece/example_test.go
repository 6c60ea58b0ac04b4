package wordpiece_test

import (
	"fmt"
	"strings"

	"github.com/flashkit-go/flashkit/examples/minilm/wordpiece"
)

// A vocabulary is a file with a token per line. An uncased model ignores accents and case.
func ExampleNew() {
	vocab := strings.NewReader("[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\nplay\n##ing\ncafe\n!\n")
	t, err := wordpiece.New(vocab, true)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(t.Len(), t.Encode(nil, "The playing Caf\u00e9!", 0))
	fmt.Println(t.Encode(nil, "The playing Caf\u00e9!", 4))
	// Output:
	// 9 [2 4 5 6 7 8 3]
	// [2 4 5 3]
}

func ExampleTokenizer_Encode() {
	t, err := wordpiece.New(strings.NewReader("[UNK]\n[CLS]\n[SEP]\na\nb\n"), true)
	if err != nil {
		fmt.Println(err)
		return
	}
	var ids []int32 // of a batch, one text after another
	starts := []int32{0}
	for _, text := range []string{"a b", "b, A"} {
		ids = t.Encode(ids, text, 128)
		starts = append(starts, int32(len(ids)))
	}
	fmt.Println(ids, starts)
	// Output:
	// [1 3 4 2 1 4 0 3 2] [0 4 9]
}
