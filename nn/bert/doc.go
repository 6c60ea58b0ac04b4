// Package bert runs encoders of the BERT family, for inference only: token, position and type
// embeddings, then layers. A layer is attention, then two linear layers with an activation between
// them. A layer norm follows the embeddings, the attention and the linear layers (post-norm). A
// sentence's vector is the mean of its token vectors.
//
//	m, err := bert.Load(config, file) // the parsed config.json and model.safetensors
//	e := bert.NewEncoder(m, d)        // d is a dispatch.Dispatcher, which runs the attention
//	s := e.NewStep()                  // scratch memory, for one goroutine at a time
//	err = s.Vectors(ctx, out, bert.Batch{IDs: ids, Starts: starts})
//
// Sequences of a batch are packed: their tokens are the rows of one matrix, without padding. A Step
// reuses its memory, so later calls do not allocate.
//
// Files and batches may be untrusted. Invalid input gives a *flashkit.ProblemError, or an error of
// package safetensors. Load allocates memory in proportion to the tensors in the file, even if a
// config claims larger tensors. Results do not depend on the number of workers. Up to the last
// bits, a sequence's results do not depend on the other sequences of a batch.
//
// Source: Devlin, Chang, Lee, Toutanova, BERT, 2019; Reimers, Gurevych, Sentence-BERT, 2019.
package bert
