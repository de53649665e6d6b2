//go:build !linux

package main

import "errors"

var errNoNodes = errors.New("the nodes of the test cluster need Linux")

func readTree(string) (tree, error) { return nil, errNoNodes }
func writeTree(string, tree) error  { return errNoNodes }
