//go:build !purego

package simd

import "golang.org/x/sys/windows/registry"

// hasFHM reads bits 48 to 51 of ID_AA64ISAR0_EL1, which Windows copies to the registry. The
// function IsProcessorFeaturePresent does not report this feature.
func hasFHM() bool { return featureRegister("CP 4030")>>48&15 != 0 }

// hasBF16 reads bits 44 to 47 of ID_AA64ISAR1_EL1.
func hasBF16() bool { return featureRegister("CP 4031")>>44&15 != 0 }

// featureRegister returns an ID register of the first processor, or 0 if the register cannot be
// read. The digits of name encode the register as the MRS instruction does.
func featureRegister(name string) uint64 {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, `HARDWARE\DESCRIPTION\System\CentralProcessor\0`, registry.QUERY_VALUE)
	if err != nil {
		return 0
	}
	defer key.Close()
	bits, _, err := key.GetIntegerValue(name)
	if err != nil {
		return 0
	}
	return bits
}
