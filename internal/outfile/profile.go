package outfile

import "bytes"

// ProfileMagic is how the profiles of every version of package dispatch begin.
const ProfileMagic = "flashkit-profile "

// Profile is the kind of dispatch's profiles, which flashrun calibrate checks before it
// measures anything.
var Profile = Kind{"a profile", func(begin []byte) bool { return bytes.HasPrefix(begin, []byte(ProfileMagic)) }}
