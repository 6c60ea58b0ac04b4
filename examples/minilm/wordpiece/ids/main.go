// Ids prints the token ids of texts. tools/wordpiece_random.py compares them with the ids of
// Hugging Face's tokenizers.
//
//	ids VOCAB cased|uncased
//
// Each line of the standard input is a text in hexadecimal, because texts may contain invalid UTF-8
// and line feeds.
package main

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/flashkit-go/flashkit/examples/minilm/wordpiece"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "ids:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 2 || args[1] != "cased" && args[1] != "uncased" {
		return fmt.Errorf("want VOCAB and cased or uncased, got %q", args)
	}
	vocab, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer vocab.Close()
	t, err := wordpiece.New(vocab, args[1] == "uncased")
	if err != nil {
		return err
	}
	lines, w := bufio.NewScanner(in), bufio.NewWriter(out)
	lines.Buffer(nil, 1<<24)
	var ids []int32
	for lines.Scan() {
		text, err := hex.DecodeString(lines.Text())
		if err != nil {
			return err
		}
		ids = t.Encode(ids[:0], string(text), 0)
		for i, id := range ids {
			if i > 0 {
				w.WriteByte(' ')
			}
			w.WriteString(strconv.Itoa(int(id)))
		}
		w.WriteByte('\n')
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return w.Flush()
}
