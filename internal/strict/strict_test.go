package strict

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestObject(t *testing.T) {
	o, err := Parse("f.json", []byte(` {"a\u0062" : [1, {"x": "}]\\\""}, ","] , "n":null,"o":{ },"p" : {"q": {"r":2}},"":0 } `))
	require.NoError(t, err)
	x, ok := o.Raw("ab")
	require.True(t, ok)
	require.Equal(t, `[1, {"x": "}]\\\""}, ","]`, string(x))
	require.Equal(t, []string{"ab", "n", "o", "p", ""}, o.Unread())
	require.False(t, o.Has("n"))
	require.True(t, o.Has("o"))
	require.Empty(t, o.Inner("o").Unread())
	o.Only("", "0")
	require.Equal(t, []string{"ab", "p"}, o.Unread())
	o.Ignore("ab")
	q := o.Inner("p").Inner("q")
	require.Equal(t, []string{"r"}, q.Unread())
	require.Equal(t, "p.q[3]", q.At("[3]"))
	require.ErrorContains(t, o.Done(), "f.json: p.q.r = 2: the key is unknown, and may change results")
	o.Refuse("ab", "must be another error")
	require.ErrorContains(t, o.Err, "p.q.r", "the first error counts")
}

func TestRefused(t *testing.T) {
	for want, text := range map[string]string{
		`f.json: unexpected end of JSON input`:                         `{"a":`,
		`f.json: invalid character '}' looking for beginning of value`: `{"a":}`,
		`f.json: must be a JSON object, not [1]`:                       ` [1]`,
		`f.json: a = 2: must not be there twice`:                       `{"a":1,"\u0061":2}`,
		`f.json: the file is a web page (HTML)`:                        `<html>`,
		`f.json: \x1b[31m = "y": the key is unknown, and ma`:           `{"\u001b[31m":"y"}`,
	} {
		o, err := Parse("f.json", []byte(text))
		if err == nil {
			err = o.Done()
		}
		require.ErrorContains(t, err, want)
	}
	deep := (&File{Name: "f.json"}).Object("a", json.RawMessage(`{}`), maxDepth+1)
	require.EqualError(t, deep.Err, "f.json: a: is nested deeper than 16")
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	require.NoError(t, os.WriteFile(path, []byte("version https://git-lfs.github.com/spec/v1\n"), 0o666))
	_, err := Read(path, 99)
	require.ErrorContains(t, err, "x: the file is a pointer of Git LFS")
	_, err = Read(path, 9)
	require.ErrorContains(t, err, "bytes are more than the limit of 9")
	_, err = Read(filepath.Dir(path), 9)
	require.ErrorContains(t, err, "not a regular file")
	o, found, err := Open(path+"y", 9)
	require.NoError(t, err)
	require.False(t, found)
	require.NoError(t, o.Done())
}

// Objects have the members that encoding/json finds.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"a":[{"b":"\\\""}],"c" : -1e3 ,"d":{"e":[]}}`))
	f.Add([]byte(`{ }`))
	f.Fuzz(func(t *testing.T, text []byte) {
		o, err := Parse("f.json", text)
		var want map[string]json.RawMessage
		if json.Unmarshal(text, &want) != nil || want == nil {
			require.Error(t, err)
			return
		}
		require.NotNil(t, o.keys)
		require.Len(t, o.keys, len(want))
		for key, value := range want {
			require.Equal(t, Compact(value), Compact(o.keys[key]))
		}
	})
}
