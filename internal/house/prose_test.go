package house

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/house/prose"
)

// Limits of package prose's expressions per 1,000 words. One is always allowed.
const (
	commentRate  = .3
	documentRate = .5
)

// wordy are the folders and pages that exceed their limit: the lists may only shrink, and so may the numbers.
var wordy = map[string]float64{
	"docs/kernels.md":                     1.65,
	"internal/input/sample/PROVENANCE.md": 10.11,
}

// proseRoom returns the package of a file, or the page.
func proseRoom(file string) string {
	if path.Ext(file) == ".md" {
		return file
	}
	return path.Dir(file)
}

// TestProse prints the words and the rate of each package and page with -v.
func TestProse(t *testing.T) {
	rooms := map[string]*prose.Count{}
	for _, file := range tracked(t, "*.go", "*.c", "*.h", "*.cu", "*.cuh", "*.md") {
		if strings.HasSuffix(file, "_test.go") || strings.Contains(file, "testdata/") || file == "THIRD_PARTY_NOTICES.md" {
			continue
		}
		room := proseRoom(file)
		if rooms[room] == nil {
			rooms[room] = &prose.Count{}
		}
		rooms[room].Add(prose.Text(file, read(t, file)))
	}
	var code, pages prose.Count
	names := slices.Sorted(maps.Keys(rooms))
	for _, room := range names {
		c, limit, all := rooms[room], commentRate, &code
		if path.Ext(room) == ".md" {
			limit, all = documentRate, &pages
		}
		all.Words, all.Hits = all.Words+c.Words, all.Hits+c.Hits
		t.Logf("%6d words %5.1f  %s", c.Words, c.Rate(), room)
		known, isWordy := wordy[room]
		switch most := max(limit, 1000/float64(max(c.Words, 1))); {
		case isWordy && c.Rate() <= most:
			t.Errorf("%s has %.2f expressions per 1,000 words now: strike it off the list", room, c.Rate())
		case isWordy && c.Rate() > known:
			t.Errorf("%s has %.2f expressions per 1,000 words; it had %.2f", room, c.Rate(), known)
		case !isWordy && c.Rate() > most:
			t.Errorf("%s has %.2f expressions per 1,000 words, %s; %.2f fit", room, c.Rate(), found(c), most)
		}
	}
	for room := range wordy {
		require.NotNil(t, rooms[room], "%s is gone: strike it off the list", room)
	}
	t.Logf("%6d words %5.1f  comments", code.Words, code.Rate())
	t.Logf("%6d words %5.1f  documents", pages.Words, pages.Rate())
}

// found lists the expressions of a count.
func found(c *prose.Count) string {
	var list []string
	for i, n := range c.Found {
		if n > 0 {
			list = append(list, fmt.Sprintf("%d %q", n, prose.Expressions[i].Name))
		}
	}
	return strings.Join(list, ", ")
}
