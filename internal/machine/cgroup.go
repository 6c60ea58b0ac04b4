package machine

import (
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

// A groupVersion holds the file names of a control group in one version of Linux's control groups.
type groupVersion struct {
	limit, used string
	cache       string // field of memory.stat with reclaimable bytes
}

// groupVersions maps file system types to versions.
var groupVersions = map[string]groupVersion{
	"cgroup2": {"memory.max", "memory.current", "inactive_file"},
	"cgroup":  {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
}

// groupFree returns the free bytes within this process's control groups: the minimum over the
// process's own group and all ancestors. It returns +Inf without groups.
func groupFree(root fs.FS) float64 {
	free, own := math.Inf(1), ownGroups(root)
	mounts, _ := fs.ReadFile(root, "proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		// Fields of a line: ID parent device ROOT FOLDER options ... - TYPE source OPTIONS
		before, after, _ := strings.Cut(line, " - ")
		mount, of := strings.Fields(before), strings.Fields(after)
		if len(mount) < 5 || len(of) < 3 || of[0] == "cgroup" && !slices.Contains(strings.Split(of[2], ","), "memory") {
			continue
		}
		group, ok := own[of[0]]
		if !ok {
			continue
		}
		below, inside := strings.CutPrefix(group+"/", strings.TrimSuffix(mount[3], "/")+"/")
		if !inside { // the path is of another namespace: the group is the root of the mount
			below = ""
		}
		top := path.Join("/", mount[4])
		for dir := path.Join(top, below); strings.HasPrefix(dir, top); dir = path.Dir(dir) {
			free = min(free, groupVersions[of[0]].free(root, dir[1:]))
			if dir == top {
				break
			}
		}
	}
	return free
}

// ownGroups returns the path of this process's memory group in each version.
func ownGroups(root fs.FS) map[string]string {
	own := map[string]string{}
	text, _ := fs.ReadFile(root, "proc/self/cgroup")
	for line := range strings.Lines(string(text)) {
		// ID:CONTROLLERS:PATH, without controllers in version 2
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		switch {
		case len(parts) < 3:
		case parts[1] == "":
			own["cgroup2"] = parts[2]
		case slices.Contains(strings.Split(parts[1], ","), "memory"):
			own["cgroup"] = parts[2]
		}
	}
	return own
}

// free returns the free bytes of a group, or +Inf if the group has no limit.
func (v groupVersion) free(root fs.FS, dir string) float64 {
	number := func(text string) float64 {
		x, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
		if err != nil {
			return math.Inf(1) // "max", or no such group
		}
		return float64(x)
	}
	read := func(name string) string {
		text, _ := fs.ReadFile(root, path.Join(dir, name))
		return string(text)
	}
	limit := number(read(v.limit))
	if math.IsInf(limit, 1) {
		return limit
	}
	used := number(read(v.used))
	for line := range strings.Lines(read("memory.stat")) {
		if value, ok := strings.CutPrefix(line, v.cache+" "); ok {
			used = max(0, used-number(value))
		}
	}
	return max(0, limit-used)
}
