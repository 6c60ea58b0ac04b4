package main

import (
	"bufio"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
)

// parseEmbeddings parses a request as OpenAI's POST /v1/embeddings.
func (s *Server) parseEmbeddings(body []byte) (*order, error) {
	m := s.embedder
	o := &order{job: job{model: m}}
	var id, format, user string
	var input bool
	dim := m.Dim()
	list := texts(&o.texts, "input", s.limits.Texts, false)
	err := parse(body, fields{
		"input":           func(d *json.Decoder) error { input = true; return list(d) },
		"model":           value(&id),
		"encoding_format": value(&format),
		"dimensions":      value(&dim),
		"user":            value(&user),
	})
	switch {
	case err != nil:
		return nil, err
	case id == "":
		return nil, bad("model", "is missing; this server has %s", m.id)
	case id != m.id:
		return nil, m.other(id)
	case !input:
		return nil, bad("input", "is missing")
	case len(o.texts) == 0:
		return nil, bad("input", "must have at least one text")
	case format != "" && format != "float" && format != "base64":
		return nil, bad("encoding_format", "%q: must be float or base64", format)
	case dim != m.Dim() && !s.limits.Matryoshka:
		return nil, bad("dimensions", "%d: the model has %d, and this server runs without -matryoshka", dim, m.Dim())
	case dim < 1 || dim > m.Dim():
		return nil, bad("dimensions", "%d: must be 1 to %d", dim, m.Dim())
	}
	for i, text := range o.texts {
		if text == "" {
			return nil, bad(fmt.Sprintf("input[%d]", i), "must not be empty")
		}
	}
	o.write = func(w http.ResponseWriter, r result) error {
		for i, v := range r.vectors {
			r.vectors[i] = cut(v, dim)
		}
		return writeEmbeddings(w, m.id, r.vectors, format == "base64", o.tokens)
	}
	return o, nil
}

// other returns the error for a model of another name.
func (m *model) other(id string) error {
	return &refusal{param: "model", reason: fmt.Sprintf("%q: this server has %q", id, m.id), status: http.StatusNotFound}
}

// cut returns the first dim numbers of a vector, normalized to length 1 if these are fewer than all.
func cut(v []float32, dim int) []float32 {
	if dim == len(v) {
		return v
	}
	squares := 0.0
	for _, x := range v[:dim] {
		squares += float64(x) * float64(x)
	}
	short, scale := make([]float32, dim), 1/max(math.Sqrt(squares), 1e-12)
	for i := range short {
		short[i] = float32(float64(v[i]) * scale)
	}
	return short
}

// writeEmbeddings writes the answer, one vector after the other.
func writeEmbeddings(w http.ResponseWriter, id string, vectors [][]float32, inBase64 bool, tokens int) error {
	b := bufio.NewWriter(w)
	b.WriteString(`{"object":"list","data":[`)
	var text []byte
	for i, v := range vectors {
		text = text[:0]
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, `{"object":"embedding","index":`...)
		text = strconv.AppendInt(text, int64(i), 10)
		text = append(text, `,"embedding":`...)
		if inBase64 {
			raw, _ := binary.Append(nil, binary.LittleEndian, v)
			text = append(text, '"')
			text = base64.StdEncoding.AppendEncode(text, raw)
			text = append(text, '"')
		} else {
			text = append(text, '[')
			for j, x := range v {
				if j > 0 {
					text = append(text, ',')
				}
				text = strconv.AppendFloat(text, float64(x), 'g', -1, 32)
			}
			text = append(text, ']')
		}
		text = append(text, '}')
		b.Write(text)
	}
	name, _ := json.Marshal(id)
	fmt.Fprintf(b, `],"model":%s,"usage":{"prompt_tokens":%d,"total_tokens":%[2]d}}`+"\n", name, tokens)
	return b.Flush()
}
