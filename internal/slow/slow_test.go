package slow

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnderRace(t *testing.T) {
	for _, value := range []string{"", "0", "1"} {
		t.Setenv("FLASHKIT_SLOW", value)
		require.Equal(t, Race && testing.Short() && value != "1", SkipsUnderRace(), "FLASHKIT_SLOW=%q", value)
		ran := false
		t.Run("slow", func(t *testing.T) {
			UnderRace(t)
			ran = true
		})
		require.Equal(t, !SkipsUnderRace(), ran)
	}
}
