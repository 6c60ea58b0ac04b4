// Package bert runs encoders of the BERT family, for inference only: token, position and type
// embeddings, then layers of attention and of two products with an activation between them. A layer
// norm follows each (post-norm). Sentence vectors are the mean of token vectors.
//
//	m, err := bert.Load(config, file) // of a config.json and a model.safetensors
//	e := bert.NewEncoder(m, d)        // of a dispatch.Dispatcher, which runs the attention
//	s := e.NewStep()                  // scratch memory, for one goroutine at a time
//	err = s.Vectors(ctx, out, bert.Batch{IDs: ids, Starts: starts})
//
// Sequences of a batch are packed: their tokens are the rows of one matrix, without padding. A warm
// call does not allocate.
//
// Files and batches may be untrusted. Invalid input is a *flashkit.ProblemError, or an error of
// package safetensors. Allocations depend on the tensors present, never on a config's claims.
// Results do not depend on the number of workers nor, up to the last bits, on the other sequences
// of a batch.
//
// Source: Devlin, Chang, Lee, Toutanova, BERT, 2019; Reimers, Gurevych, Sentence-BERT, 2019.
package bert
