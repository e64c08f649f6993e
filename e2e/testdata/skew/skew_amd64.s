// Laid over cmd/lanegate by the chaos tests only: see e2e/skew_test.go.

#include "textflag.h"

// clock is clock_gettime(DI, SI) in C's convention. It asks the kernel and moves
// the answer for CLOCK_REALTIME (0).
TEXT clock<>(SB), NOSPLIT|NOFRAME, $0
	MOVL $228, AX
	SYSCALL
	TESTL DI, DI
	JNE  done
	MOVQ ·skew(SB), CX
	ADDQ CX, (SI)
done:
	RET

// func skewedClock() uintptr
TEXT ·skewedClock(SB), NOSPLIT, $0-8
	MOVQ $clock<>(SB), AX
	MOVQ AX, ret+0(FP)
	RET
