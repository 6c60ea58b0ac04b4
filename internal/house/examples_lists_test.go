package house

// implementations are methods that the standard library calls through an interface. Examples of
// their types show the effect.
var implementations = []string{"String", "Error", "Unwrap", "Is", "MarshalText", "UnmarshalText"}

// exceptions are the names of a package that need no example, or no output.
type exceptions struct {
	byType        bool     // a type's example stands for its methods
	withoutOutput []string // examples that need a GPU, NCCL or MPI: compiled, but not run
	internal      []string // called by this module's packages or through their interfaces, not by programs
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
	"nn":         {byType: true},
	"nn/encoder": {byType: true},
	"backends/cuda": {
		byType: true,
		withoutOutput: []string{
			"Devices", "OpenContext", "Open", "OpenDevice", "Upload", "UploadTensor", "Download", "DownloadTensor",
			"Backend", "Backend.Backward", "Backend.CopyRate", "Backend.Forward", "Backend.Launch",
			"Backend.NewPriorityStream", "Backend.Peak", "Backend.Pick", "Backend.Within", "Backend.Wrap",
			"Backend.WrapStream", "Buffer", "DeviceSequences", "Event", "Stream", "Stream.Add", "Stream.Copy",
			"Stream.Merge", "Stream.Wait",
		},
	},
}
