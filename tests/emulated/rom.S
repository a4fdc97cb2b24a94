/* SPDX-License-Identifier: Apache-2.0 */
/* 64 KiB boot ROM for Bochs: replaces BIOS and boot loader. The launcher has already put the
 * kernel, the initramfs and the tables into guest RAM (Bochs "optramimage"), so all that is left
 * is to enter long mode and jump to the kernel's 64-bit entry (boot protocol: rsi = boot_params).
 * A second pass (reset after a kernel panic or triple fault) finds the magic gone: shut down.
 * Addresses are shared with host.cpp. */
	.set MAGIC,   0x3141444b	/* "KDA1" */
	.set HEADER,  0x6000		/* u32 magic, u32 pad, u64 kernel entry */
	.set PARAMS,  0x7000		/* struct boot_params */
	.set PML4,    0x9000
	.set BASE,    0xF0000
	.section .text
	.code16
rom:
start:	cli
	lgdtl %cs:(gdtr - rom)
	movl %cr0, %eax
	orl $1, %eax
	movl %eax, %cr0
	ljmpl $0x08, $(BASE + pm32 - rom)
	.code32
pm32:	movl $0x18, %eax
	movl %eax, %ds
	movl %eax, %es
	movl %eax, %ss
	cmpl $MAGIC, HEADER
	jne off
	movl $0, HEADER
	movl %cr4, %eax
	orl $0x20, %eax			/* PAE */
	movl %eax, %cr4
	movl $PML4, %eax
	movl %eax, %cr3
	movl $0xC0000080, %ecx		/* EFER.LME */
	rdmsr
	orl $0x100, %eax
	wrmsr
	movl %cr0, %eax
	orl $0x80000000, %eax
	movl %eax, %cr0
	ljmpl $0x10, $(BASE + lm64 - rom)
	.code64
lm64:	movl $PARAMS, %esi
	movq HEADER+8, %rax
	jmp *%rax
	.code32
off:	movl $(BASE + bye - rom), %esi
	movl $8, %ecx
	movw $0x8900, %dx
	cld
	rep outsb
1:	hlt
	jmp 1b
bye:	.ascii "Shutdown"
	.balign 8
gdt:	.quad 0, 0x00CF9A000000FFFF, 0x00AF9A000000FFFF, 0x00CF92000000FFFF
gdtr:	.word 31
	.long BASE + gdt - rom
	.org 0xFFF0
	.code16
	jmp start
	.org 0x10000
