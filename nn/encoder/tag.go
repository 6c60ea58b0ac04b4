package encoder

import (
	"context"

	"github.com/flashkit-go/flashkit/nn"
)

// A Tag is the best label of a token.
type Tag struct {
	ID    int32   // of the token, in the model's vocabulary
	Label string  // as the model's files name it
	Score float32 // probability of the label
}

// A tagger is a tail with a logit for each token and label.
type tagger struct {
	before []stage // of each token alone
	linear *nn.Linear
	labels []string
}

func (t *tagger) forward(s *nn.Step, x nn.Tensor, _ int) nn.Tensor {
	for _, b := range t.before {
		x = b.forward(s, x, 0)
	}
	return t.linear.Forward(s, x)
}

func (t *tagger) perToken() bool { return true }
func (t *tagger) width() int     { return len(t.labels) }

// readTagger reads the classifier of tokens, which ends with a linear layer.
func (e *Encoder) readTagger(c *config, w *nn.Init) (*tagger, error) {
	var before []stage
	switch e.model.(type) {
	case *modernBERT:
		before = modernInner(c, w, e.model.shape().hidden)
	case *bert, *distilbert, *mpnet, *nomicBERT, *roberta:
	default:
		c.Refuse("architectures", "token classification of this model_type is not supported")
	}
	labels := c.labels()
	if c.Err != nil {
		return nil, c.Err
	}
	return &tagger{before, nn.NewLinear(w.In("classifier"), e.model.shape().hidden, len(labels), true), labels}, w.Err()
}

// Tag returns the best label of each token of each text, special tokens included. The model must be
// a token classifier.
func (e *Encoder) Tag(ctx context.Context, texts []string) ([][]Tag, error) {
	if e.tagger == nil {
		return nil, problem("Encoder", "no labels", "must have labels of tokens: the model is no token classifier")
	}
	c := e.take()
	defer e.give(c)
	if err := c.prepare(ctx, "", false, texts); err != nil {
		return nil, err
	}
	out, err := c.run(ctx, e.tagger, 0)
	if err != nil {
		return nil, err
	}
	n := len(e.tagger.labels)
	all, results := make([]Tag, len(c.batch.ids)), make([][]Tag, len(texts))
	for i := range all {
		scores, best := out[i*n:][:n], 0
		softmax(scores)
		for j, x := range scores {
			if x > scores[best] {
				best = j
			}
		}
		all[i] = Tag{c.batch.ids[i], e.tagger.labels[best], scores[best]}
	}
	for row, i := range c.order {
		from, to := c.batch.starts[row], c.batch.starts[row+1]
		results[i] = all[from:to:to]
	}
	return results, nil
}
