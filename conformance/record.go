package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/safetensors"
)

// ManifestVersion is the version of the manifest's format. It changes if a member's name or meaning
// changes.
const ManifestVersion = 1

// A Manifest lists all cases with a golden vector, for programs in other languages.
// vectors/README.md describes the members.
type Manifest struct {
	Schema    string            `json:"$schema"`
	Version   int               `json:"version"`
	Generator string            `json:"generator"`
	Folder    string            `json:"folder"`  // folder of the golden vectors, relative to the manifest
	Reasons   map[string]string `json:"reasons"` // texts for Record.Reason
	Cases     []Record          `json:"cases"`
}

// A Record describes a case in the manifest, or a case in one type in the file case.json of a
// runner's folder. In the manifest, DType is empty. In case.json, File, Inputs and the bounds of
// other types are absent.
type Record struct {
	Name      string   `json:"name"`
	Catches   string   `json:"catches"`
	Problem   string   `json:"problem"`
	Features  []string `json:"features"` // everything beyond dense attention with equal heads that the case needs
	Batch     int      `json:"batch"`
	Heads     int      `json:"heads"`
	KVHeads   int      `json:"kv_heads"`
	QLen      int      `json:"q_len"`
	KVLen     int      `json:"kv_len"`
	Dim       int      `json:"dim"`
	VDim      int      `json:"v_dim"`
	DType     string   `json:"dtype,omitempty"`
	KVDType   string   `json:"kv_dtype,omitempty"`   // type of K and V; in the manifest only if it differs from the type of Q
	BiasDType string   `json:"bias_dtype,omitempty"` // type of the bias; in the manifest only if it is f32 in every case
	Left      *int     `json:"left"`                 // nil for no limit
	Right     *int     `json:"right"`
	TopLeft   bool     `json:"top_left"`
	Shift     int      `json:"shift"`
	Scale     float64  `json:"scale"` // never 0
	Softcap   float64  `json:"softcap"`
	Dropout   float64  `json:"dropout"`
	Seed      string   `json:"seed,omitempty"`       // decimal, since not all JSON parsers read 64 bits
	Origin    []int    `json:"origin,omitempty"`     // sequence, head, row, key
	Int8Group int      `json:"int8_group,omitempty"` // elements of a row of K and V that share a scale
	Page      int      `json:"page"`
	Layout    string   `json:"layout"`
	File      string   `json:"file,omitempty"`
	Inputs    string   `json:"inputs,omitempty"` // stored, formula or patterns
	Outputs   []string `json:"outputs"`
	Reason    string   `json:"reason"` // key of Manifest.Reasons
	// Bounds holds the largest allowed error by type and output.
	Bounds map[string]map[string]float64 `json:"bounds"`
}

var reasons = map[string]string{
	"grid": "f32: 1e-5; other types as rounding",
	"rounding": "t*e + 2^-20*max(1,a) + u*a: e is the error of the plain algorithm in this type, a the largest finite value of the output, " +
		"u the type's rounding unit, t is 2, or 3 for gradients",
}

var recordLayouts = [...]string{bhsd: "dense", bshd: "bshd", gaps: "gaps", expanded: "expanded", oddStrides: "odd_strides",
	padded: "padded", packed: "packed", packedQ: "packed_q", packedKV: "packed_kv", paged: "paged"}

// record returns the case's record, without file, inputs and bounds.
func (c Case) record() Record {
	p := c.Problem
	r := Record{Name: c.Name, Catches: c.Catches, Problem: p.String(), Features: c.needs(), Batch: p.Batch, Heads: p.Heads, KVHeads: p.KVHeads,
		QLen: p.QLen, KVLen: p.KVLen, Dim: p.Dim, VDim: p.VDim, TopLeft: p.Band.IsTopLeft(), Shift: p.Band.Shifted(), Scale: p.SoftmaxScale(),
		Left: side32(p.Band.Left()), Right: side32(p.Band.Right()), Softcap: float64(p.Score.Softcap), Dropout: float64(p.Score.Dropout), Page: p.Page, Int8Group: p.Int8Group,
		Layout: recordLayouts[c.layout], Reason: "rounding"}
	if c.grid {
		r.Reason = "grid"
	}
	in := c.Inputs()
	if p.KVDType != 0 {
		r.KVDType = p.KVDType.String()
	}
	if p.Score.Bias && !in.narrowPairs {
		r.BiasDType = flashkit.Float32.String()
	}
	if p.Score.Dropout != 0 {
		r.Seed = strconv.FormatUint(in.seed, 10)
	}
	if o := in.origin; p.Score.Origin {
		r.Origin = []int{o.Batch, o.Head, o.Row, o.Key}
	}
	for _, i := range written(p) {
		r.Outputs = append(r.Outputs, outputNames[i])
	}
	return r
}

func side32(n int) *int {
	if n == flashkit.Unlimited {
		return nil
	}
	return &n
}

// needs returns the names of everything in the case that an implementation may lack. An
// implementation that lacks one of them refuses the case.
func (c Case) needs() []string {
	p := c.Problem
	names := []string{}
	for _, x := range []struct {
		name string
		has  bool
	}{
		{"gqa", p.Heads != p.KVHeads}, {"v_dim", p.Dim != p.VDim}, {"scale", p.Scale != 0}, {"dlse", c.dlse},
		{"window", p.Band.Left() != flashkit.Unlimited || p.Band.Right() != flashkit.Unlimited}, {"top_left", p.Band.IsTopLeft()},
	} {
		if x.has {
			names = append(names, x.name)
		}
	}
	if f := p.Features(); f != 0 {
		names = append(names, strings.Split(f.String(), ",")...)
	}
	return names
}

// NewManifest returns the manifest of all cases with a golden vector. vectors has these vectors by
// VectorName.
func NewManifest(vectors map[string]*safetensors.File) (*Manifest, error) {
	m := &Manifest{Schema: "schema.json", Version: ManifestVersion, Generator: Generator, Folder: "../testdata", Reasons: reasons}
	for _, c := range slices.Concat(Grid(), Traps()) {
		f := vectors[c.VectorName()]
		if f == nil {
			return nil, fmt.Errorf("%s: no vector %s", c.Name, c.VectorName())
		}
		r := c.record()
		r.File, r.Bounds = c.VectorName()+VectorSuffix, map[string]map[string]float64{}
		r.Inputs = map[string]string{"noise": "formula", "stored": "stored"}[f.Metadata["inputs"]]
		if c.grid {
			r.Inputs = "patterns"
		}
		for _, t := range c.types() {
			bounds, err := boundsIn(f, t, c.Problem)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.Name, err)
			}
			r.Bounds[t.String()] = boundsByName(bounds, r.Outputs)
		}
		m.Cases = append(m.Cases, r)
	}
	return m, nil
}

func boundsByName(b bounds, outputs []string) map[string]float64 {
	byName := map[string]float64{}
	for _, name := range outputs {
		byName[name] = b[slices.Index(outputNames[:], name)]
	}
	return byName
}

// Text returns the manifest as JSON, with one case on each line.
func (m *Manifest) Text() ([]byte, error) {
	cases := m.Cases
	head := *m
	head.Cases = []Record{}
	text, err := json.MarshalIndent(&head, "", " ")
	if err != nil {
		return nil, err
	}
	text = bytes.TrimSuffix(text, []byte("[]\n}"))
	text = append(text, '[')
	for i := range cases {
		line, err := json.Marshal(&cases[i])
		if err != nil {
			return nil, err
		}
		if i > 0 {
			text = append(text, ',')
		}
		text = append(append(text, '\n'), line...)
	}
	return append(text, "\n]}\n"...), nil
}
