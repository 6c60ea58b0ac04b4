package ring

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// A feature of unknown scope, or of a scope from a later version, is refused by name.
func TestUnknownScopesAreRefused(t *testing.T) {
	for i, x := range flashkit.Parameters() {
		if x.Feature == 0 {
			continue
		}
		p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 1, Dim: 1, VDim: 1}
		switch field := x.Of(&p).(type) {
		case *bool:
			*field = true
		case *float32:
			*field = .5
		case *int:
			*field = 1
		}
		require.Equal(t, x.Feature, p.Features())
		if x.Scope&(flashkit.ScopeRange|flashkit.ScopeKey|flashkit.ScopeRow) == 0 {
			require.NoError(t, featureScopes.check(&p), x.Name)
		}
		for _, unknown := range []flashkit.Scope{0, 1 << 7, x.Scope | 1<<7} {
			list := flashkit.Parameters()
			list[i].Scope = unknown
			s := scopesOf(list)
			require.EqualError(t, s.check(&p), (&flashkit.UnsupportedError{Kernel: "ring", Problem: p, Reason: "does not know how to cut " + x.Name}).Error())
			require.Zero(t, (s.head|s.position|s.pair)&x.Feature)
		}
	}
}

// The list of parameters has every feature except band shifts and mixed types. A ring does not cut
// ranges of keys or scales of int8 keys, and does not merge row maxima or sums of keys.
func TestScopesCoverFeatures(t *testing.T) {
	require.Equal(t, flashkit.AllFeatures&^(flashkit.FeatureRanges|flashkit.FeatureInt8|flashkit.FeatureRowMax|flashkit.FeatureKeyMass), featureScopes.known)
	require.Equal(t, flashkit.FeatureALiBi|flashkit.FeatureSink, featureScopes.head)
	require.Equal(t, flashkit.FeatureALiBi|flashkit.FeatureDropout|flashkit.FeatureOrigin, featureScopes.position)
	require.Equal(t, flashkit.FeatureBias|flashkit.FeatureMask, featureScopes.pair)
}
