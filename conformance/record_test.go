package conformance

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/safetensors"
)

// published reads a file of the folder vectors, which is a module of its own.
func published(t *testing.T, name string) []byte {
	text, err := os.ReadFile("vectors/" + name)
	require.NoError(t, err)
	return text
}

// The manifest has every case of the Go suite that has a golden vector, and nothing else.
func TestManifestIsCurrent(t *testing.T) {
	all, err := vectors()
	require.NoError(t, err)
	m, err := NewManifest(all)
	require.NoError(t, err)
	want, err := m.Text()
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, published(t, "manifest.json")), "vectors/manifest.json is not current: run make vectors")
	require.Len(t, m.Cases, len(Grid())+len(Traps()))
	named := map[string]bool{}
	for _, c := range m.Cases {
		named[c.Name] = true
	}
	require.Len(t, named, len(m.Cases), "two cases have one name")
}

// The schema lists the members of the manifest and of a case, and requires all members that are always there.
func TestSchemaListsTheMembers(t *testing.T) {
	type object struct {
		Properties map[string]json.RawMessage
		Required   []string
	}
	var s struct {
		object
		Defs struct{ Case object } `json:"$defs"`
	}
	require.NoError(t, json.Unmarshal(published(t, "schema.json"), &s))
	for _, x := range []struct {
		of   object
		kind reflect.Type
	}{{s.object, reflect.TypeFor[Manifest]()}, {s.Defs.Case, reflect.TypeFor[Record]()}} {
		var names, required []string
		for i := range x.kind.NumField() {
			name, rest, _ := strings.Cut(x.kind.Field(i).Tag.Get("json"), ",")
			names = append(names, name)
			if rest == "" {
				required = append(required, name)
			}
		}
		have := []string{}
		for name := range x.of.Properties {
			have = append(have, name)
		}
		require.ElementsMatch(t, names, have)
		require.ElementsMatch(t, required, x.of.Required)
	}
}

// golden returns the file of a runner without a mistake.
func golden(c *Case, want result) *safetensors.File {
	f := &safetensors.File{}
	for _, i := range written(c.Problem) {
		dense := c.Inputs().shapes()[i]
		shape := dense[:]
		switch i {
		case sumLSE, sumRowMax:
			shape = shape[:3]
		case sumDSink:
			shape = shape[1:2]
		}
		f.Tensors = append(f.Tensors, safetensors.FromFloat32s(outputNames[i], shape, narrow(want.arrays()[i])))
	}
	return f
}

// A task has the inputs of its case. The golden vector passes, and one wrong element fails.
func TestTasksAreTheCases(t *testing.T) {
	for i, c := range Tasks() {
		if testing.Short() && i%29 != 0 {
			continue
		}
		text, inputs, err := c.Task()
		require.NoError(t, err)
		var r Record
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		require.NoError(t, d.Decode(&r))
		require.Equal(t, []string{c.FullName(), c.Problem.String()}, []string{r.Name, r.Problem})
		for _, x := range inputs.Tensors[:3] {
			view, err := x.Decode()
			require.NoError(t, err)
			got := flashkit.ToF32(view)
			name := map[string]string{"q": "Q", "k": "K", "v": "V"}[x.Name]
			want := c.Inputs().array(name, flashkit.PassForward, result{})
			require.True(t, slices.EqualFunc(got, want, func(a, b float32) bool { return a == b || a != a && b != b }), "%s %s", c.FullName(), x.Name)
		}
		want, bound, err := c.expect()
		require.NoError(t, err)
		f := golden(&c, want)
		judged, faults, err := c.Judge(f)
		require.NoError(t, err)
		require.Empty(t, faults, c.FullName())
		require.Equal(t, r.Outputs, judged)

		n := rand.IntN(len(f.Tensors))
		out := written(c.Problem)[n]
		if x, _ := f.Tensors[n].Float32s(); len(x) > 0 {
			at := rand.IntN(len(x))
			old := x[at]
			if x[at] += float32(2 * boundOf(out, float64(x[at]), bound[out])); x[at] == old || old != old {
				x[at] = 1 // the element was infinite or NaN
			}
			f.Tensors[n] = safetensors.FromFloat32s(f.Tensors[n].Name, f.Tensors[n].Shape, x)
			_, faults, err = c.Judge(f)
			require.NoError(t, err)
			require.Len(t, faults, 1, "%s: element %d of %s", c.FullName(), at, f.Tensors[n].Name)
			require.Equal(t, []int{1, len(x)}, []int{faults[0].Wrong, faults[0].Of})
		}
	}
}

// A runner cannot pass by leaving out O, or by other names, types and shapes.
func TestJudgeRefuses(t *testing.T) {
	c := Traps()[0]
	want, _, err := c.expect()
	require.NoError(t, err)
	for wrong, change := range map[string]func(f *safetensors.File){
		`"o"`:                        func(f *safetensors.File) { f.Tensors = f.Tensors[1:] },
		`"x": the case has no such`:  func(f *safetensors.File) { f.Tensors[1].Name = "x" },
		`"dsink": the case has no`:   func(f *safetensors.File) { f.Tensors[1].Name = "dsink" },
		"shape is [1 3 1 8], want [": func(f *safetensors.File) { f.Tensors[0].Shape = []int{1, 3, 1, 8} },
		"dtype is I32":               func(f *safetensors.File) { f.Tensors[0].DType = "I32" },
	} {
		f := golden(&c, want)
		change(f)
		_, _, err := c.Judge(f)
		require.ErrorContains(t, err, wrong)
	}
}

// The page for runners explains every feature of the schema.
func TestPageExplainsTheFeatures(t *testing.T) {
	var s struct {
		Defs struct {
			Case struct {
				Properties struct {
					Features struct{ Items struct{ Enum []string } }
				}
			}
		} `json:"$defs"`
	}
	require.NoError(t, json.Unmarshal(published(t, "schema.json"), &s))
	page, features := string(published(t, "README.md")), s.Defs.Case.Properties.Features.Items.Enum
	require.NotEmpty(t, features)
	for _, name := range features {
		require.Contains(t, page, "`"+name+"`", "README.md has no row for the feature")
	}
}
