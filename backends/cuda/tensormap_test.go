package cuda

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The tiles of fwd_sm90 cover every row once, and no multiprocessor ends later than
// if all tiles were tall and came head by head.
func TestCutRows(t *testing.T) {
	for range 20000 {
		rows, heads, groups, sms := 1+rand.IntN(1<<rand.IntN(14)), 1+rand.IntN(200), 1+rand.IntN(3), 1+rand.IntN(150)
		cut, _ := cutRows(rows, heads, groups, sms)
		message := fmt.Sprintf("%+v of %d rows, %d heads, %d warpgroups, %d multiprocessors", cut, rows, heads, groups, sms)
		full, low := groups*groupRows, int(cut.lowRows)
		require.True(t, low > 0 && low <= full && low%groupRows == 0, message)
		rest := max(0, rows-int(cut.tall)*full)
		require.True(t, int(cut.tall) <= ceilDiv(rows, full) && int(cut.low) == ceilDiv(rest, low), message)

		of := func(rows int) int { return 5*ceilDiv(rows, groupRows) + 6 }
		var plain, ours []int // times of all tiles
		for range heads {
			for row := 0; row < rows; row += full {
				plain = append(plain, of(min(full, rows-row)))
			}
		}
		for range heads {
			for row := 0; row < min(rows, int(cut.tall)*full); row += full {
				ours = append(ours, of(min(full, rows-row)))
			}
		}
		for range heads {
			for row := 0; row < rest; row += low {
				ours = append(ours, of(min(low, rest-row)))
			}
		}
		ends := func(times []int) int {
			loads := make([]int, sms)
			for i, x := range times {
				loads[i%sms] += x
			}
			return slices.Max(loads)
		}
		require.LessOrEqual(t, ends(ours), ends(plain), message)
	}
}
