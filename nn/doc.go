// Package nn provides the layers around attention: linear layers, norms, embeddings, multi-head
// attention, a transformer and a language model. Each layer has a forward and a backward pass. The
// package also has optimizers.
//
// A layer is an ordinary Go value. Backward takes the gradient of Forward's result, adds to the
// parameters' gradients and returns the gradient of Forward's input. There is no graph: a model
// calls its layers' Forward in order, and their Backward in reverse order. A Step holds the data
// that Forward records for Backward, and the scratch memory. A Step's later passes reuse that
// memory and do not allocate. Any number of goroutines can run Forward of the same layers, each
// with its own Step.
//
//	e := nn.NewEngine(d) // d is a dispatch.Dispatcher
//	s := e.NewStep()
//	s.BeginTraining(ctx, seed, number)
//	loss := cross.Forward(s, model.Forward(s, tokens), targets)
//	model.Backward(s, cross.Backward(s))
//	if err := s.Err(); err != nil { ... }
//	optimizer.Update()
//
// Errors are sticky: after the first error the Step's layers do nothing, and Err returns that
// error. Invalid input gives a *flashkit.ProblemError that names the field. The package never
// panics on input and prints nothing.
//
// Everything is float32. Weights have PyTorch's layouts and names: a linear layer's weight is [out,
// in]. docs/layers.md has the shapes and a table for porting models.
package nn
