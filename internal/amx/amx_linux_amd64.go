package amx

import "syscall"

// ask requests the AMX registers from Linux, for the whole process. Afterwards signal frames are
// larger, and the system refuses signal stacks that are too small for such frames. Go's signal
// stacks are large enough.
func ask() bool {
	const requestFeature, tileData = 0x1023, 18 // ARCH_REQ_XCOMP_PERM
	_, _, errno := syscall.RawSyscall(syscall.SYS_ARCH_PRCTL, requestFeature, tileData, 0)
	return errno == 0
}
