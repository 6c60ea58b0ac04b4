// Ids prints the token ids of texts. Scripts in tools compare them with the ids of Hugging Face's
// tokenizers.
//
//	ids [PATH]
//
// PATH is a model's folder or a tokenizer.json. Each line of the standard input is a text in
// hexadecimal, because texts may contain invalid UTF-8 and line feeds. A second text on the line
// makes a pair; then the types follow the ids, after a bar. The line "max N" limits the tokens of
// the texts after it. The line "open PATH" opens another tokenizer; the answer is "ok", with the
// number of ids, or "error" and the reason.
package main

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/flashkit-go/flashkit/nn/tokenizer"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "ids:", err)
		os.Exit(1)
	}
}

// program is a tokenizer and the limit of tokens.
type program struct {
	t   *tokenizer.Tokenizer
	max int
	e   tokenizer.Encoding
}

func run(args []string, in io.Reader, out io.Writer) error {
	var p program
	if len(args) > 1 {
		return fmt.Errorf("want at most a path, got %q", args)
	}
	for _, name := range args {
		if err := p.open(name); err != nil {
			return err
		}
	}
	lines, w := bufio.NewScanner(in), bufio.NewWriter(out)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		answer, err := p.line(lines.Text())
		if err != nil {
			return err
		}
		w.WriteString(answer)
		if strings.HasPrefix(lines.Text(), "open ") {
			w.Flush() // the caller waits for the answer
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return w.Flush()
}

func (p *program) open(name string) (err error) {
	p.t = nil
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	if info.IsDir() {
		p.t, err = tokenizer.Open(name)
		return err
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	p.t, err = tokenizer.Parse(b)
	return err
}

// line returns the answer to a line.
func (p *program) line(line string) (string, error) {
	if name, ok := strings.CutPrefix(line, "open "); ok {
		if err := p.open(name); err != nil {
			return "error " + err.Error() + "\n", nil
		}
		return fmt.Sprintln("ok", p.t.Len()), nil
	}
	if n, ok := strings.CutPrefix(line, "max "); ok {
		var err error
		p.max, err = strconv.Atoi(n)
		return "", err
	}
	if p.t == nil {
		return "no tokenizer is open\n", nil
	}
	first, second, pair := strings.Cut(line, " ")
	a, err := hex.DecodeString(first)
	if err != nil {
		return "", err
	}
	b, err := hex.DecodeString(second)
	if err != nil {
		return "", err
	}
	if !pair {
		p.t.Encode(&p.e, p.max, string(a))
		return numbers(p.e.IDs) + "\n", nil
	}
	p.t.EncodePair(&p.e, p.max, string(a), string(b))
	return numbers(p.e.IDs) + "|" + numbers(p.e.Types) + "\n", nil
}

func numbers(list []int32) string {
	var b []byte
	for i, n := range list {
		if i > 0 {
			b = append(b, ' ')
		}
		b = strconv.AppendInt(b, int64(n), 10)
	}
	return string(b)
}
