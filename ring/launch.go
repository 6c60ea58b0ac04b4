package ring

import (
	"fmt"
	"strconv"
)

// A Launch is a launcher's description of this process.
type Launch struct {
	Launcher         string // "MPI", "Open MPI", "Slurm" or "torchrun"; "" if started alone
	Rank, Size       int    // rank of this process, and number of ranks
	Local, LocalSize int    // the same among the ranks of this machine, for the choice of a device; LocalSize is 0 if unknown
	Address          string // host:port of rank 0 where ranks may meet, "" if unknown
}

// launchers are the environment variables that each launcher sets. Slurm is last, because it may
// start the other launchers.
var launchers = []struct{ name, rank, size, local, localSize string }{
	{"MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
	{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
	{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
	{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""},
}

// Launched returns the launcher's description of this process. It reads environment variables with
// getenv, such as os.Getenv. It supports mpiexec, Slurm, torchrun, and cluster operators that set
// torchrun's variables. Without such variables the process is rank 0 of 1. It is an error if a
// variable is not a number from 0 on, or the rank is not below the number of ranks.
func Launched(getenv func(string) string) (Launch, error) {
	for _, l := range launchers {
		if getenv(l.rank) == "" || getenv(l.size) == "" {
			continue
		}
		x := Launch{Launcher: l.name}
		for _, v := range []struct {
			to   *int
			name string
		}{{&x.Rank, l.rank}, {&x.Size, l.size}, {&x.Local, l.local}, {&x.LocalSize, l.localSize}} {
			if v.name == "" || getenv(v.name) == "" {
				continue
			}
			n, err := strconv.Atoi(getenv(v.name))
			if err != nil || n < 0 {
				return Launch{}, fmt.Errorf("ring: %s=%q: must be a number", v.name, getenv(v.name))
			}
			*v.to = n
		}
		if x.Rank >= x.Size {
			return Launch{}, fmt.Errorf("ring: %s=%d: must be less than %s=%d", l.rank, x.Rank, l.size, x.Size)
		}
		if host, port := getenv("MASTER_ADDR"), getenv("MASTER_PORT"); host != "" && port != "" {
			x.Address = host + ":" + port
		}
		return x, nil
	}
	return Launch{Size: 1, LocalSize: 1}, nil
}
