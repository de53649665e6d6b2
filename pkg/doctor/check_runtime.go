package doctor

func runtimeChecks() []Check { return nil }
