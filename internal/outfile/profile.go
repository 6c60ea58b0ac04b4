package outfile

import "bytes"

// ProfileMagic begins the profiles of every version of package dispatch.
const ProfileMagic = "flashkit-profile "

// Profile is the kind of dispatch's profiles.
var Profile = Kind{"a profile", func(begin []byte) bool { return bytes.HasPrefix(begin, []byte(ProfileMagic)) }}
