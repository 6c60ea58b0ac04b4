package house

// implementations are methods that the standard library calls through an interface. Examples of
// their types show the effect.
var implementations = []string{"String", "Error", "Unwrap", "Is", "MarshalText", "UnmarshalText"}

// exceptions are the names of a package that need no comment or example.
type exceptions struct {
	withoutComment []string // may only shrink
	withoutExample []string // may only shrink
	withoutOutput  []string // examples that need a GPU, NCCL or MPI: compiled, but not run
	internal       []string // called by this module's packages or through their interfaces, not by programs
}

// shelves are the packages that TestExamples reads.
var shelves = map[string]exceptions{
	".":        {},
	"dispatch": {},
	"ring": {
		internal: []string{"LocalOver"}, // by transports
	},
	"ring/mpi": {
		withoutOutput: []string{
			"package", "Watch", "Group.Rank", "Group.Size", "Group.Library", "Group.Gather", "Group.Close",
		},
		internal: []string{"Group.Start", "Group.Wait", "Group.Fail"}, // ring.Group, by a Ring
	},
	"ring/nccl": {
		withoutOutput: []string{"package", "Open", "OpenLaunched"},
	},
	"ring/peer": {
		withoutOutput: []string{
			"package", "Open", "Rank.Upload", "Rank.Random", "Rank.GPU", "Rank.Stream", "Rank.Close",
			"Args.Download", "Args.Free",
		},
		internal: []string{
			// Transports such as package nccl.
			"Over", "Rank.Copies", "Rank.Travel", "Rank.Moves",
			// ring.Device and ring.Mover, by a Ring and its transport.
			"Rank.Forward", "Rank.Backward", "Rank.Pick", "Rank.PartOf", "Rank.Kernels", "Rank.Begin", "Rank.End",
			"Rank.Early", "Rank.Rounds", "Rank.Arrived", "Rank.Beside", "Rank.Holds", "Rank.Alloc", "Rank.Fill",
			"Rank.Add", "Rank.Merge", "Rank.Copy", "Rank.Get", "Rank.Put", "Rank.Ready", "Rank.Move", "Rank.Done",
		},
	},
	"nn": {
		withoutComment: []string{
			"AdamW.Eps", "AdamW.LR", "AdamW.WeightDecay", "AttentionConfig.Causal", "AttentionConfig.Dropout",
			"AttentionConfig.Heads", "AttentionConfig.QFeatures", "AttentionLayer.Attention", "AttentionLayer.K",
			"AttentionLayer.NormK", "AttentionLayer.NormQ", "AttentionLayer.NormV", "AttentionLayer.Out",
			"AttentionLayer.Q", "AttentionLayer.V", "LanguageModel.Embedding", "LanguageModel.Head",
			"LanguageModel.Transformer", "LayerNorm.Eps", "Linear.Activation", "MultiHeadAttention.Heads",
			"Param.Shape", "Rows.Batch", "Rows.T", "SGD.LR", "SGD.WeightDecay", "Tensor.Data", "Tensor.Features",
			"Tokens.IDs", "Transformer.Layers", "Transformer.Positions", "TransformerConfig.Causal",
			"TransformerConfig.Dropout", "TransformerConfig.Heads", "TransformerConfig.Layers", "TransformerLayer.Attention",
			"TransformerLayer.Dropout", "TransformerLayer.Linear2", "TransformerLayer.Norm",
		},
		withoutExample: []string{
			"Activation.Backward", "Activation.Forward", "AdamW.State", "AdamW.Update", "AttentionLayer.Backward",
			"AttentionLayer.Decode", "AttentionLayer.Forward", "AttentionLayer.Params", "AttentionLayer.UseFlashAttention",
			"Count", "CrossEntropy.Backward", "CrossEntropy.Forward", "Dropout.Backward", "Dropout.Forward",
			"Embedding.Backward", "Embedding.Forward", "Embedding.Params", "Engine.Close", "Init.Constant",
			"Init.Err", "Init.Fail", "Init.In", "Init.Normal", "KVCache.Append", "KVCache.Capacity",
			"KVCache.Lens", "KVCache.Reset", "KVCache.View", "LanguageModel.Backward", "LanguageModel.Decode",
			"LanguageModel.Forward", "LanguageModel.NewCaches", "LanguageModel.Params", "LanguageModel.UseFlashAttention",
			"LayerNorm.Backward", "LayerNorm.Forward", "LayerNorm.Params", "Linear.Backward", "Linear.Forward",
			"Linear.Params", "MultiHeadAttention.Backward", "MultiHeadAttention.Decode", "MultiHeadAttention.Forward",
			"NewAdamW", "NewAttentionLayer", "NewEmbedding", "NewKVCache", "NewLanguageModel", "NewLayerNorm",
			"NewLinear", "NewMultiHeadAttention", "NewPositionalEmbedding", "NewRotary", "NewSGD", "NewTensor",
			"NewTokens", "NewTransformer", "NewTransformerLayer", "Param.ZeroGrad", "PositionalEmbedding.Backward",
			"PositionalEmbedding.Forward", "PositionalEmbedding.ForwardFrom", "PositionalEmbedding.Params",
			"Rotary.Backward", "Rotary.Forward", "Rotary.ForwardFrom", "Rows.Count", "SGD.State", "SGD.Update",
			"Step.Add", "Step.Begin", "Step.BeginTraining", "Step.Err", "Step.Fail", "Step.Keep", "Step.Mark",
			"Step.Memory", "Step.NewTensor", "Step.Pop", "Step.Push", "Step.Train", "Tensor.Columns",
			"Tensor.Row", "Transformer.Backward", "Transformer.Decode", "Transformer.Forward", "Transformer.NewCaches",
			"Transformer.Params", "Transformer.UseFlashAttention", "TransformerLayer.Backward", "TransformerLayer.Decode",
			"TransformerLayer.Forward", "TransformerLayer.Params", "TransformerLayer.UseFlashAttention",
		},
	},
	"nn/bert": {
		withoutExample: []string{
			"Encoder.Close", "Encoder.NewStep", "Model.Config", "NewEncoder",
		},
	},
	"backends/cuda": {
		withoutComment: []string{
			"DeviceSequences.KVLens", "DeviceSequences.KVStarts", "DeviceSequences.Pages", "DeviceSequences.QLens",
			"DeviceSequences.QStarts", "Driver.CtxEnablePeerAccess", "Driver.CtxPopCurrent", "Driver.CtxPushCurrent",
			"Driver.DeviceAttribute", "Driver.DeviceGetCount", "Driver.DeviceGetName", "Driver.DevicePrimaryCtxRelease",
			"Driver.DevicePrimaryCtxRetain", "Driver.DeviceTotalMem", "Driver.EventCreate", "Driver.EventDestroy",
			"Driver.EventElapsedTime", "Driver.EventRecord", "Driver.EventSynchronize", "Driver.FuncBlocksPerSM",
			"Driver.Init", "Driver.MemAlloc", "Driver.MemAllocAsync", "Driver.MemFree", "Driver.MemFreeAsync",
			"Driver.MemFreeHost", "Driver.MemHostAlloc", "Driver.Memcpy3DPeerAsync", "Driver.MemcpyDtoHAsync",
			"Driver.MemcpyHtoDAsync", "Driver.MemcpyPeerAsync", "Driver.MemsetD32Async", "Driver.ModuleGetFunction",
			"Driver.ModuleGetGlobal", "Driver.ModuleLoadData", "Driver.ModuleUnload", "Driver.StreamDestroy",
			"Driver.StreamSynchronize", "Driver.StreamWaitEvent", "Error.Error",
		},
		withoutExample: []string{
			"Backend.Alloc", "Backend.Close", "Backend.Device", "Backend.Hardware", "Backend.Kernels",
			"Backend.Name", "Backend.NewEvent", "Backend.NewPriorityStream", "Backend.NewStream", "Backend.Pick",
			"Backend.Poison", "Backend.Reach", "Backend.Within", "Backend.Workspace", "Backend.Wrap",
			"Backend.WrapStream", "Buffer.Address", "Buffer.Backend", "Buffer.Bytes", "Buffer.Device",
			"Buffer.Free", "Buffer.Tensor", "Devices", "Download", "DownloadTensor", "Event.Close",
			"Event.Since", "Event.Sync", "OpenContext", "OpenDevice", "OpenWith", "Stream.Add", "Stream.Close",
			"Stream.Fill", "Stream.Handle", "Stream.Record", "Stream.Sync", "Stream.Wait", "Upload",
		},
		withoutOutput: []string{
			"Backend.Backward", "Backend.CopyRate", "Backend.Forward", "Backend.Launch", "Backend.Peak",
			"DeviceSequences", "Open", "Stream.Copy", "Stream.Merge", "UploadTensor",
		},
	},
}
