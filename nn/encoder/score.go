package encoder

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// Score returns a score for each text: how well the text answers the query. The model must be a
// reranker, which is a sequence classifier with one label. Scores have the activation that the
// model's files name, else the sigmoid, as CrossEncoder of sentence-transformers.
func (e *Encoder) Score(ctx context.Context, query string, texts []string) ([]float32, error) {
	if e.head == nil || len(e.head.labels) != 1 {
		return nil, problem("Encoder", e.labelCount(), "must have one label: the model is no reranker")
	}
	c := e.take()
	defer e.give(c)
	if err := c.prepare(ctx, query, true, texts); err != nil {
		return nil, err
	}
	out, err := c.run(ctx, e.head, 0)
	if err != nil {
		return nil, err
	}
	scores := make([]float32, len(texts))
	for row, i := range c.order {
		scores[i] = out[row]
		if e.head.score != nil {
			scores[i] = float32(e.head.score(float64(out[row])))
		}
	}
	return scores, nil
}

// A Class is a label of a classifier and its score for a text.
type Class struct {
	Label string  // as the model's files name it
	Score float32 // a probability, or the result of a regression
}

// Classify returns the labels and scores of each text, best first. The model must be a sequence
// classifier. The scores of a text are probabilities of sum 1 or, if a text may have several
// labels, a probability for each label. The scores of a regression are its results.
func (e *Encoder) Classify(ctx context.Context, texts []string) ([][]Class, error) {
	if e.head == nil {
		return nil, problem("Encoder", e.labelCount(), "must have labels: the model is no sequence classifier")
	}
	c := e.take()
	defer e.give(c)
	if err := c.prepare(ctx, "", false, texts); err != nil {
		return nil, err
	}
	out, err := c.run(ctx, e.head, 0)
	if err != nil {
		return nil, err
	}
	n := len(e.head.labels)
	all, results := make([]Class, len(out)), make([][]Class, len(texts))
	for row, i := range c.order {
		scores, classes := out[row*n:][:n], all[row*n:][:n:n]
		if e.head.class != nil {
			e.head.class(scores)
		}
		for j, label := range e.head.labels {
			classes[j] = Class{label, scores[j]}
		}
		slices.SortStableFunc(classes, func(a, b Class) int { return cmp.Compare(b.Score, a.Score) })
		results[i] = classes
	}
	return results, nil
}

func (e *Encoder) labelCount() string {
	if e.head == nil {
		return "no labels"
	}
	return fmt.Sprintf("%d labels", len(e.head.labels))
}
