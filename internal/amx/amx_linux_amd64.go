package amx

import "syscall"

// ask asks Linux for leave to use the registers of AMX, which it gives or refuses to the whole
// process. From then on a signal frame is larger, and the system refuses signal stacks that
// are too small for it; Go's are not.
func ask() bool {
	const requestFeature, tileData = 0x1023, 18 // ARCH_REQ_XCOMP_PERM
	_, _, errno := syscall.RawSyscall(syscall.SYS_ARCH_PRCTL, requestFeature, tileData, 0)
	return errno == 0
}
