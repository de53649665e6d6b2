package packed

import "encoding/binary"

// Calls to the same function consist of different bytes in each place, because they contain the distance to the
// function. If they contain its address instead, the same bytes repeat, and the helper becomes 5 % smaller. This is the
// BCJ filter of xz and 7-Zip, for programs that start at offset 0 of a file:
// https://en.wikipedia.org/wiki/BCJ_(algorithm)

// Absolute replaces the distances in the calls of a program with addresses, in place. Architectures have the names that
// Go uses; for architectures other than amd64 and arm64, Absolute does nothing. [Relative] restores the program,
// whatever it contains.
func Absolute(program []byte, arch string) {
	switch arch {
	case "amd64":
		// Overlapping candidates are converted in the opposite order of Relative, so that both functions make the same
		// decisions.
		for i := len(program) - callSize; i >= 0; i-- {
			convertCall(program[i:], i)
		}
	case "arm64":
		convertBranches(program, 1)
	}
}

// Relative reverses [Absolute].
func Relative(program []byte, arch string) {
	switch arch {
	case "amd64":
		for i := 0; i+callSize <= len(program); i++ {
			convertCall(program[i:], -i)
		}
	case "arm64":
		convertBranches(program, -1)
	}
}

// callSize is the size of CALL rel32 and JMP rel32, including the opcode.
const callSize = 5

// convertCall adds a number to the operand of a call or jump at the beginning of code. The operand is a signed 25-bit
// number, which covers the 16 MiB before and after the instruction. The new operand is also a signed 25-bit number, so
// that the conversion can be reversed.
func convertCall(code []byte, add int) {
	if high := code[4]; code[0]&0xfe != 0xe8 || high != 0 && high != 0xff {
		return
	}
	operand := (binary.LittleEndian.Uint32(code[1:]) + uint32(add)) << 7
	binary.LittleEndian.PutUint32(code[1:], uint32(int32(operand)>>7))
}

// convertBranches adds the position of each BL instruction, counted in instructions, to the instruction's 26-bit
// operand, or subtracts it.
func convertBranches(program []byte, sign int) {
	const opcode, operand = 0x25 << 26, 1<<26 - 1
	for i := 0; i+4 <= len(program); i += 4 {
		if code := binary.LittleEndian.Uint32(program[i:]); code&^uint32(operand) == opcode {
			binary.LittleEndian.PutUint32(program[i:], opcode|(code+uint32(sign*i/4))&operand)
		}
	}
}
