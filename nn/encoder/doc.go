// Package encoder runs published encoders and rerankers: text in, vectors or scores out.
//
//	e, err := encoder.Open(ctx, "all-MiniLM-L6-v2") // a folder as its makers publish it
//	vectors, err := e.Embed(ctx, []string{"The weather is lovely today.", "It's so sunny outside!"})
//
// A reranker scores texts for a query instead:
//
//	scores, err := e.Score(ctx, "Is it raining?", texts) // a greater score is a better answer
//
// A folder has config.json, model.safetensors or its shards, and tokenizer.json or vocab.txt. The
// settings of sentence-transformers are optional. The results equal the results of
// sentence-transformers and transformers, up to the last bits. A setting that may change results and that this package
// does not know is an error, which names the file and the key.
//
// Texts of a call are sorted by length and packed: their tokens are the rows of one matrix, without
// padding. Results do not depend on the number of workers. Up to the last bits, a text's result
// does not depend on the other texts of a call.
//
// With Options.GPU, an NVIDIA GPU runs the layers, with cuBLAS.
//
// Files and texts may be untrusted. Invalid input gives an error, such as a *flashkit.ProblemError
// or an error of package safetensors. Open allocates memory in proportion to the files, even if a
// config claims larger tensors.
//
// Source: Devlin, Chang, Lee, Toutanova, BERT, 2019; Reimers, Gurevych, Sentence-BERT, 2019.
package encoder
