// Package nn has the layers around attention, with a forward and a backward pass each:
// linear, norms, embeddings, multi-head attention, a transformer and a language model,
// and the optimizers that train them.
//
// Layers are plain values. Forward computes, Backward takes the gradient of what Forward
// returned, adds to the gradients of the parameters and returns the gradient of what
// Forward was given. There is no graph: a model calls its layers in one order, and their
// backward passes in the other. What Forward leaves for Backward lies on the stack of a
// Step, which also has the scratch memory, so a warm pass allocates nothing and any number
// of goroutines can run the same layers, each with a Step of its own.
//
//	e := nn.NewEngine(d) // of a dispatch.Dispatcher
//	s := e.NewStep()
//	s.BeginTraining(ctx, seed, number)
//	loss := cross.Forward(s, model.Forward(s, tokens), targets)
//	model.Backward(s, cross.Backward(s))
//	if err := s.Err(); err != nil { ... }
//	optimizer.Update()
//
// Errors stick: after the first one the Step's passes do nothing, and Err returns it. Input
// that makes no sense gives a *flashkit.ProblemError that names what is wrong. No input
// makes the package panic, and it prints nothing.
//
// Everything is float32. Weights lie and are named as those of PyTorch: that of a linear
// layer is [out, in]. docs/layers.md has the shapes and a table for those who port models.
package nn
