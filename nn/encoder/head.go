package encoder

import (
	"fmt"
	"math"
	"strconv"

	"github.com/flashkit-go/flashkit/nn"
)

// A head is the layers and settings of a sequence classifier.
type head struct {
	*chain                             // from hidden states to a logit for each label
	labels []string                    // names of the labels
	score  func(logit float64) float64 // of Score; nil is the identity
	class  func(logits []float32)      // of Classify: turns logits into scores; nil is the identity
	pad    int32                       // the token that is cut from the ends of sequences; -1 for none
	seen   bool                        // earlier tokens see the padding, so that it must not be cut
}

// readHead reads the classifier of a model whose architecture has one.
func (e *Encoder) readHead(c *config, k kind, w *nn.Init) (*head, error) {
	if k.head == nil {
		c.Refuse("architectures", "sequence classification of this model_type is not supported")
		return nil, c.Err
	}
	h := &head{labels: c.labels(), pad: -1}
	if m, ok := e.model.(*decoder); ok {
		h.pad, h.seen = m.padding(c), m.bothSides
	}
	h.activations(c)
	if c.Err != nil {
		return nil, c.Err
	}
	hidden := e.model.shape().hidden
	h.chain = &chain{k.head(c, w, hidden, len(h.labels)), hidden}
	if c.Err != nil {
		return nil, c.Err
	}
	return h, w.Err()
}

// maxLabels is the maximum number of labels of a classifier.
const maxLabels = 1 << 20

// labels returns the names of the labels, in the order of the logits.
func (c *config) labels() []string {
	byID := map[string]string{}
	if c.Has("id2label") {
		take(c, "id2label", &byID)
	}
	n := len(byID)
	if c.Has("num_labels") {
		n = c.integer("num_labels", 0, 1)
	} else if n == 0 {
		n = 2
	}
	if len(byID) > 0 && n != len(byID) || n > maxLabels {
		c.Refuse("num_labels", "must be the number of labels in id2label, %d", len(byID))
		return nil
	}
	labels := make([]string, n)
	for i := range labels {
		label, ok := byID[strconv.Itoa(i)]
		if !ok && len(byID) > 0 {
			c.Refuse("id2label", "the key %d is missing", i)
		} else if !ok {
			label = fmt.Sprintf("LABEL_%d", i)
		}
		labels[i] = label
	}
	return labels
}

// activations sets score, as sentence-transformers' CrossEncoder does, and class, as transformers'
// pipeline does.
func (h *head) activations(c *config) {
	const sigmoidClass, identity = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
	otherwise := identity
	if len(h.labels) == 1 {
		otherwise = sigmoidClass
	}
	inner := c.object("sentence_transformers")
	inner.Ignore("version")
	switch {
	case inner.Has("activation_fn"):
		h.score = inner.function("activation_fn", otherwise)
	case c.Has("sbert_ce_default_activation_function"):
		h.score = c.function("sbert_ce_default_activation_function", otherwise)
	case len(h.labels) == 1:
		h.score = sigmoid
	}
	kind := ""
	if c.Has("problem_type") {
		kind = c.text("problem_type", "")
	}
	switch {
	case kind == "regression":
	case kind == "multi_label_classification", kind == "" && len(h.labels) == 1, kind == "single_label_classification" && len(h.labels) == 1:
		h.class = sigmoids
	case kind == "", kind == "single_label_classification":
		h.class = softmax
	default:
		c.Refuse("problem_type", "must be regression, single_label_classification or multi_label_classification")
	}
}

func sigmoids(x []float32) {
	for i, v := range x {
		x[i] = float32(sigmoid(float64(v)))
	}
}

func softmax(x []float32) {
	most, sum := float32(math.Inf(-1)), 0.0
	for _, v := range x {
		most = max(most, v)
	}
	for _, v := range x {
		sum += math.Exp(float64(v - most))
	}
	for i, v := range x {
		x[i] = float32(math.Exp(float64(v-most)) / sum)
	}
}

// firstToken is the stage that keeps the first token of each sequence.
func firstToken() stage { return &pool{by: []pooling{poolFirst}} }

// logits returns a linear layer from hidden states to labels. Its results have the precision
// float32.
func logits(w *nn.Init, hidden, labels int) stage {
	return &dense{linear: nn.NewLinear(w, hidden, labels, true)}
}

// bertHead is BertForSequenceClassification.
func bertHead(_ *config, w *nn.Init, hidden, labels int) []stage {
	pooler := &dense{linear: nn.NewLinear(w.In("pooler.dense"), hidden, hidden, true), function: math.Tanh}
	return []stage{firstToken(), pooler, logits(w.In("classifier"), hidden, labels)}
}
