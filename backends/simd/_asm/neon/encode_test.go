package main

import (
	"bytes"
	"encoding/hex"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// assembler returns the path of llvm-mc, which Debian has in the packages llvm-19 and llvm-14.
func assembler(t *testing.T) string {
	for _, name := range []string{"llvm-mc-19", "llvm-mc-14", "llvm-mc"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no llvm-mc, of Debian's llvm-19 or llvm-14, is in the path")
	return ""
}

// instructions returns the words of all instructions of the routines, by their texts.
func instructions(t *testing.T) map[string]string {
	found := map[string]string{}
	for _, write := range passes {
		g := newGenerator()
		write(g)
		for _, m := range regexp.MustCompile(`WORD \$0x([0-9a-f]{8}) // (.*)`).FindAllStringSubmatch(g.code.String(), -1) {
			if word, ok := found[m[2]]; ok && word != m[1] {
				t.Errorf("%s is %s and %s", m[2], word, m[1])
			}
			found[m[2]] = m[1]
		}
	}
	return found
}

// Every word in the routines equals llvm-mc's encoding of the word's text. The routines use all
// forms.
func TestEncodings(t *testing.T) {
	path := assembler(t)
	found := instructions(t)
	var texts []string
	for text := range found {
		texts = append(texts, text)
	}
	slices.Sort(texts)
	cmd := exec.Command(path, "-triple=aarch64", "-mattr=+fp16fml,+bf16,+dotprod,+i8mm", "-show-encoding")
	cmd.Stdin = strings.NewReader(strings.Join(texts, "\n") + "\n")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatal(err, errs.String())
	}
	words := regexp.MustCompile(`encoding: \[0x(..),0x(..),0x(..),0x(..)\]`).FindAllStringSubmatch(out.String(), -1)
	if len(words) != len(texts) {
		t.Fatalf("%d words for %d instructions", len(words), len(texts))
	}
	used := map[string]bool{}
	for i, text := range texts {
		if want := words[i][4] + words[i][3] + words[i][2] + words[i][1]; found[text] != want {
			t.Errorf("%s is %s, want %s", text, found[text], want)
		}
		used[number.ReplaceAllStringFunc(text, func(s string) string { return s[:1] })] = true
	}
	for key := range forms {
		if !used[key] {
			t.Errorf("no routine uses %q", key)
		}
	}
	t.Logf("%d instructions of %d forms", len(texts), len(used))
}

func TestEncodeFails(t *testing.T) {
	for _, text := range []string{"fmla v0.8h, v1.8h, v2.8h", "fadd v0.4s, v1.4s, v32.4s", "fadd v0.4s, v1.4s"} {
		if word, err := encode(text); err == nil {
			t.Errorf("%s is %s", text, hex.EncodeToString([]byte{byte(word >> 24), byte(word >> 16), byte(word >> 8), byte(word)}))
		}
	}
}
