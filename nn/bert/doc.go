// Package bert runs encoders of the BERT family: token, position and type embeddings, layers
// of attention and of two products with an activation between them, each followed by a layer
// norm (post-norm), and vectors of sentences as the mean of their tokens. It is for
// inference alone.
//
//	m, err := bert.Load(config, file) // of a config.json and a model.safetensors
//	e := bert.NewEncoder(m, d)        // of a dispatch.Dispatcher, which runs the attention
//	s := e.NewStep()                  // scratch memory, for one goroutine at a time
//	err = s.Vectors(ctx, out, bert.Batch{IDs: ids, Starts: starts})
//
// Sequences of a batch are packed: their tokens are the rows of one matrix, one sequence after
// the other, and nothing is computed for a padding. A warm call allocates nothing.
//
// Files and batches may come from anyone. What makes no sense is a *flashkit.ProblemError, or
// an error of package safetensors, and what is allocated depends on the tensors that are there,
// never on what a config claims. Results do not depend on the number of workers, nor on
// which sequences share a batch but for the last bits.
//
// Source: Devlin, Chang, Lee, Toutanova, BERT, 2019; Reimers, Gurevych, Sentence-BERT, 2019.
package bert
