package bert

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"github.com/flashkit-go/flashkit/internal/matmul"
	"github.com/flashkit-go/flashkit/safetensors"
)

// A Model is the weights of an encoder, which nothing changes. It is safe for concurrent use.
type Model struct {
	config Config
	act    matmul.Activation

	word, position, kind []float32 // [Vocab, Hidden], [Positions, Hidden], [Types, Hidden]
	norm                 layerNorm
	layers               []layer
}

// A layer has its weights packed, [in, out].
type layer struct {
	qkv, out, up, down        matmul.Packed // [h, 3h], [h, h], [h, i], [i, h]
	qkvBias, outBias          []float32
	upBias, downBias          []float32
	attentionNorm, outputNorm layerNorm
}

// A layerNorm has its weight, its bias and what is added to the variance.
type layerNorm struct {
	weight, bias []float32
	eps          float32
}

// Load makes a model of the tensors of a file, in the names of Hugging Face, with or without
// "bert." in front, and with gamma and beta for the weight and bias of a LayerNorm, as
// bert-base-uncased is published. Tensors that an encoder has no use for, such as those of a pooler, are
// ignored. The embeddings are not copied where the machine can read them in place: the
// bytes that the file was parsed from must not change while the model is in use.
func Load(c Config, f *safetensors.File) (*Model, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	l := loader{file: f, precision: precisions[c.Precision], block: blockFor(&c, f)}
	if _, ok := f.Tensor("embeddings.word_embeddings.weight"); !ok {
		l.prefix = "bert."
	}
	m := &Model{config: c, act: activations[c.Activation]}
	h := c.Hidden
	m.word = l.read("embeddings.word_embeddings.weight", c.Vocab, h)
	m.position = l.read("embeddings.position_embeddings.weight", c.Positions, h)
	m.kind = l.read("embeddings.token_type_embeddings.weight", c.Types, h)
	m.norm = l.norm("embeddings.LayerNorm", &c)
	for i := 0; i < c.Layers && l.err == nil; i++ {
		m.layers = append(m.layers, l.layer(fmt.Sprintf("encoder.layer.%d.", i), &c))
	}
	if l.err != nil {
		return nil, l.err
	}
	return m, nil
}

// Config returns the shape of the model.
func (m *Model) Config() Config { return m.config }

// A loader reads tensors until one is not as it should be.
type loader struct {
	file      *safetensors.File
	prefix    string
	precision matmul.Precision
	block     *matmul.Block
	err       error
	qkv       []float32 // of a layer, before it is packed
}

// blockFor returns memory for the weights of all layers in the order of their use, but no more
// than the file has: a config may ask for any number.
func blockFor(c *Config, f *safetensors.File) *matmul.Block {
	h, bytes := float64(c.Hidden), 0.0
	for i := range f.Tensors {
		bytes += float64(len(f.Tensors[i].Data))
	}
	words := float64(c.Layers) * (4*h*h + 2*h*float64(c.Intermediate))
	if precisions[c.Precision] != matmul.Float32 {
		words /= 2
	}
	return matmul.NewBlock(int(min(words, bytes/4)))
}

func (l *loader) layer(prefix string, c *Config) (x layer) {
	h, self := c.Hidden, prefix+"attention.self."
	l.qkv = l.qkv[:0]
	for _, name := range [...]string{"query", "key", "value"} {
		l.qkv = append(l.qkv, l.read(self+name+".weight", h, h)...)
		x.qkvBias = append(x.qkvBias, l.read(self+name+".bias", h)...)
	}
	l.pack(&x.qkv, l.qkv, 3*h, h)
	x.outBias = l.linear(&x.out, prefix+"attention.output.dense", h, h)
	x.upBias = l.linear(&x.up, prefix+"intermediate.dense", c.Intermediate, h)
	x.downBias = l.linear(&x.down, prefix+"output.dense", h, c.Intermediate)
	x.attentionNorm = l.norm(prefix+"attention.output.LayerNorm", c)
	x.outputNorm = l.norm(prefix+"output.LayerNorm", c)
	return x
}

// linear packs a weight, which files have as [out, in], and returns a copy of the bias.
func (l *loader) linear(p *matmul.Packed, name string, out, in int) []float32 {
	l.pack(p, l.read(name+".weight", out, in), out, in)
	return slices.Clone(l.read(name+".bias", out))
}

func (l *loader) pack(p *matmul.Packed, x []float32, out, in int) {
	if l.err == nil {
		p.Precision = l.precision
		p.PackIn(l.block, matmul.Dense(x, out, in).T())
	}
}

func (l *loader) norm(name string, c *Config) layerNorm {
	weight, bias := l.read(l.either(name+".weight", name+".gamma"), c.Hidden), l.read(l.either(name+".bias", name+".beta"), c.Hidden)
	return layerNorm{slices.Clone(weight), slices.Clone(bias), float32(c.Eps)}
}

// either returns the name of a tensor, or its name in the files of the TensorFlow models.
func (l *loader) either(name, old string) string {
	_, isOld := l.file.Tensor(l.prefix + old)
	if !isOld || l.err != nil {
		return name
	}
	if _, ok := l.file.Tensor(l.prefix + name); ok {
		l.err = fmt.Errorf("bert: tensors %q and %q are the same parameter", l.prefix+name, l.prefix+old)
	}
	return old
}

// read returns the elements of a tensor of the given shape.
func (l *loader) read(name string, shape ...int) []float32 {
	if l.err != nil {
		return nil
	}
	t, ok := l.file.Tensor(l.prefix + name)
	switch {
	case !ok:
		l.err = fmt.Errorf("bert: tensor %q is missing", name)
	case t.DType != "F32":
		l.err = problem("tensor "+name, t.DType, "must be F32")
	case !slices.Equal(t.Shape, shape):
		l.err = problem("tensor "+name, fmt.Sprint(t.Shape), "must be of shape %v, as the config says", shape)
	}
	if l.err != nil {
		return nil
	}
	elements := uint64(1) // below 2^62, as the config's dimensions are below 2^31
	for _, n := range shape {
		elements *= uint64(n)
	}
	if x := inPlace(t.Data); uint64(len(x)) == elements {
		return x
	}
	x, err := t.Float32s()
	l.err = err
	return x
}

// inPlace returns the numbers that little-endian bytes are, nil where the machine cannot read
// them so.
func inPlace(b []byte) []float32 {
	p := unsafe.Pointer(unsafe.SliceData(b))
	if len(b) == 0 || len(b)%4 != 0 || uintptr(p)%4 != 0 || binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil
	}
	return unsafe.Slice((*float32)(p), len(b)/4)
}
