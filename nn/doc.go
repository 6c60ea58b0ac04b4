// Package nn provides the layers around attention, each with a forward and a backward pass: linear
// layers, norms, embeddings, multi-head attention, a transformer and a language model. It also has
// optimizers.
//
// Layers are plain values. Backward takes the gradient of Forward's result, adds to the parameters'
// gradients and returns the gradient of Forward's input. There is no graph: a model calls its
// layers in order, and their backward passes in reverse. A Step holds the records that Forward
// leaves for Backward, and the scratch memory. So a warm pass does not allocate, and any number of
// goroutines can run the same layers, each with its own Step.
//
//	e := nn.NewEngine(d) // of a dispatch.Dispatcher
//	s := e.NewStep()
//	s.BeginTraining(ctx, seed, number)
//	loss := cross.Forward(s, model.Forward(s, tokens), targets)
//	model.Backward(s, cross.Backward(s))
//	if err := s.Err(); err != nil { ... }
//	optimizer.Update()
//
// Errors are sticky: after the first one the Step's passes do nothing, and Err returns it. Invalid
// input gives a *flashkit.ProblemError that names the field. The package never panics on input and
// prints nothing.
//
// Everything is float32. Weights have PyTorch's layouts and names: a linear layer's weight is [out,
// in]. docs/layers.md has the shapes and a table for porting models.
package nn
