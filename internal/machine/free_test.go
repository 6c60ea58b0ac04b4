package machine

import (
	"math"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// The minimum over the process's group and its ancestors counts, in both versions, with and without
// a container.
func TestGroupFree(t *testing.T) {
	const (
		two    = "30 1 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
		one    = "30 1 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n35 1 0:32 / /sys/fs/cgroup/memory rw shared:1 - cgroup cgroup rw,memory\n"
		docker = "35 1 0:32 /docker/abc /sys/fs/cgroup/memory ro master:2 - cgroup cgroup rw,memory\n"
		v1, v2 = "sys/fs/cgroup/memory/", "sys/fs/cgroup/"
		ours   = "0::/user.slice/run.scope/inner\n"
	)
	limit, used := "memory.max", "memory.current"
	limit1, used1 := "memory.limit_in_bytes", "memory.usage_in_bytes"
	for name, x := range map[string]struct {
		mounts, groups string
		files          map[string]string
		want           float64
	}{
		"no groups":           {"", "", nil, math.Inf(1)},
		"no limit":            {two, ours, map[string]string{v2 + "user.slice/run.scope/inner/" + limit: "max\n", v2 + "user.slice/run.scope/inner/" + used: "7\n"}, math.Inf(1)},
		"container":           {two, "0::/\n", map[string]string{v2 + limit: "1000\n", v2 + used: "300\n"}, 700},
		"own group":           {two, ours, map[string]string{v2 + "user.slice/run.scope/inner/" + limit: "1000\n", v2 + "user.slice/run.scope/inner/" + used: "100\n"}, 900},
		"group above":         {two, ours, map[string]string{v2 + "user.slice/run.scope/inner/" + limit: "1000\n", v2 + "user.slice/run.scope/inner/" + used: "100\n", v2 + "user.slice/" + limit: "5000", v2 + "user.slice/" + used: "4500"}, 500},
		"group between":       {two, ours, map[string]string{v2 + "user.slice/run.scope/" + limit: "400", v2 + "user.slice/run.scope/" + used: "500", v2 + limit: "9000", v2 + used: "1"}, 0},
		"another group":       {two, ours, map[string]string{v2 + "user.slice/other/" + limit: "5", v2 + "user.slice/other/" + used: "1"}, math.Inf(1)},
		"cache":               {two, "0::/\n", map[string]string{v2 + limit: "1000\n", v2 + used: "900\n", v2 + "memory.stat": "anon 500\ninactive_file 400\nactive_file 5\n"}, 500},
		"another namespace":   {"30 1 0:26 /a/b /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/../x\n", map[string]string{v2 + limit: "10", v2 + used: "1"}, 9},
		"version 1":           {one, "4:cpu,cpuacct:/x\n3:memory:/a/b\n", map[string]string{v1 + "a/b/" + limit1: "9223372036854771712\n", v1 + "a/b/" + used1: "5", v1 + "a/" + limit1: "800\n", v1 + "a/" + used1: "200\n"}, 600},
		"version 1, cache":    {one, "3:memory:/a\n", map[string]string{v1 + "a/" + limit1: "800\n", v1 + "a/" + used1: "700\n", v1 + "a/memory.stat": "inactive_file 1\ntotal_inactive_file 300\n"}, 400},
		"version 1, docker":   {docker, "3:memory:/docker/abc/in\n", map[string]string{v1 + "in/" + limit1: "50", v1 + "in/" + used1: "20", v1 + limit1: "100", v1 + used1: "80"}, 20},
		"version 1, a prefix": {docker, "3:memory:/docker/abcd\n", map[string]string{v1 + "d/" + limit1: "5", v1 + "d/" + used1: "2", v1 + limit1: "100", v1 + used1: "80"}, 20},
		"both versions":       {one + "41 1 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n", "3:memory:/a\n0::/b\n", map[string]string{v1 + "a/" + limit1: "30", v1 + "a/" + used1: "20"}, 10},
		"damaged":             {"x\n - \n - cgroup2\n1 2 3 / / - cgroup2 cgroup2 rw\n", "0\n0::\n::/\n", map[string]string{limit: "-5", used: "x"}, math.Inf(1)},
	} {
		root := fstest.MapFS{"proc/self/mountinfo": {Data: []byte(x.mounts)}, "proc/self/cgroup": {Data: []byte(x.groups)}}
		for path, text := range x.files {
			root[path] = &fstest.MapFile{Data: []byte(text)}
		}
		require.Equal(t, x.want, groupFree(root), name)
	}
	require.Positive(t, Free())
}
